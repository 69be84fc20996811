"""Mutations: mistakes that nobody has reported yet, made at collectives and at the state of ranks."""
