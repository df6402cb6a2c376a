"""One run: `config` (what it is), `loop` (training), `models`, `distributed`, `store` (what it leaves on disk)."""
