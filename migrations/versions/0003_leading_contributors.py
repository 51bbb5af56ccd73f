"""the leading contributors of readings, so that a unit's page finds its readings in an index"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    leading = op.create_table(
        "leading_contributors",
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("component", sa.String(length=40), nullable=False),
        sa.Column("reading_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.SmallInteger(), nullable=False),
        sa.Column("term", sa.Double(), nullable=False),
        sa.Column("target_rank", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["reading_id"], ["readings.id"], name="fk_leading_contributors_reading_id_readings", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("checkpoint_hash", "component", "reading_id", name="pk_leading_contributors"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_leading_contributors_reading_id", "leading_contributors", ["reading_id"], unique=False)
    _fill(leading)


def downgrade() -> None:
    op.drop_index("ix_leading_contributors_reading_id", table_name="leading_contributors")
    op.drop_table("leading_contributors")


def _fill(leading: sa.Table) -> None:
    """From the newest revision of every reading that is stored already."""
    connection = op.get_bind()
    stored = connection.execute(
        sa.text(
            "SELECT r.id, p.checkpoint_hash, v.id FROM readings r JOIN prompts p ON p.digest = r.digest "
            "JOIN revisions v ON v.reading_id = r.id WHERE v.revision = "
            "(SELECT max(w.revision) FROM revisions w WHERE w.reading_id = r.id)"
        )
    )
    for reading_id, checkpoint_hash, revision_id in stored.fetchall():
        # One summary at a time: together they may be larger than memory.
        summary = connection.execute(sa.text("SELECT summary FROM revisions WHERE id = :id"), {"id": revision_id})
        rows = [
            {
                "checkpoint_hash": checkpoint_hash,
                "component": found["id"],
                "reading_id": reading_id,
                "place": place,
                "term": found["value"],
                "target_rank": found.get("target_rank"),
            }
            for place, found in enumerate(json.loads(summary.scalar_one()).get("top", ()), 1)
        ]
        if rows:
            connection.execute(leading.insert(), rows)
