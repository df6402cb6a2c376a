"""Images: `datasets` (what there is, checked), `readers` (file formats), `augment`, `batches`."""
