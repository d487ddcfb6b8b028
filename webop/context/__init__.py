"""State that the handlers of an operator share: resources, indexes, memos, active or paused."""
