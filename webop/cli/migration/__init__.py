"""Analyse the files of an operator for Kopf: what must change, and what behaves differently."""
