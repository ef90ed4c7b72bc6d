"""Image and audio files: where they are, archives, and a cache of what was decoded."""
