"""Images: `datasets` (what there is, checked), `readers` (formats), `copies` (smaller ones), `augment`, `batches`."""
