"""Images: `datasets` (what there is, checked), `readers` (file formats), `prepare` (smaller copies), `augment`, `batches`."""
