"""One file per `toolkit` sub-command."""
