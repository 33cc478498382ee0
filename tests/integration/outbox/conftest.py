"""The fixtures of the tests of outboxes: databases that have one."""

from tests.integration.outbox.databases import connection, file, outbox, postgres, postgresql

__all__ = ["connection", "file", "outbox", "postgres", "postgresql"]
