"""Declared handlers with their options and filters, and the causes to call them."""
