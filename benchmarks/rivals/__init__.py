"""Rivals, each once, with a fixed grid; same data, dtype and threads as ours."""
