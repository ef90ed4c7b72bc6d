"""Tables and overlaid curves of many runs: `toolkit runs --where ... --columns ... --html FILE --csv FILE`."""
