"""Looks for what is wrong with the rows of a run: `toolkit doctor`.

`examine` collects the findings of the other modules and turns them into overrides, and `report` shows them.
"""
