"""Models whose attention layers are recorded: published ones, whose weights are downloaded, and small ones trained on the spot."""
