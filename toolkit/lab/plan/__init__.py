"""Plans a run: its memory, parallel strategies, and settings that make it fit."""
