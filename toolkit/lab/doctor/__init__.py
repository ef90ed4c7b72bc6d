"""Looks for what is wrong with the rows of a run: `toolkit doctor`.

`examine` collects the findings of the other modules, `suggestions` turns them into overrides, and `page` shows them.
"""
