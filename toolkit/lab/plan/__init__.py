"""Before a run: what memory it needs, how that could be shared out, and what would make it fit."""
