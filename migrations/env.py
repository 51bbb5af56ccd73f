"""Runs migrations on the connection that the program hands over, or on the settings' database from the command line."""

from alembic import context

from app.database import Database, open_engine
from app.settings import Settings
from app.tables import Base


def run(connection) -> None:  # type: ignore[no-untyped-def]
    # SQLite cannot alter most things in place, so alterations copy the table ("batch").
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with Database(open_engine(Settings.load())).write() as opened:
        run(opened)
