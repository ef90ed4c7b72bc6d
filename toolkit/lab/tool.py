"""New: lab/tool."""
