"""A client of nearcall's protocol, written from docs/protocol.md and docs/shm.md alone."""
