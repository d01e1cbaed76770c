"""A client of nearcall's protocol, written only from docs/protocol.md and docs/shm.md."""
