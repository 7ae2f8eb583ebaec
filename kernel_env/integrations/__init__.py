"""Adapters for trainers. Each imports only the client, and only when it is first used."""
