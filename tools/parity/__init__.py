"""The page of parity: which rows of the feature checklist are shown by which tests."""
