"""monitors, the streams under them, and what they flagged"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "monitors",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_monitors"),
        sa.UniqueConstraint("checkpoint_hash", "name", name="uq_monitors_checkpoint_hash_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "monitor_streams",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("monitor_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=True),
        sa.Column("pieces", sa.Integer(), nullable=False),
        sa.Column("consumed", sa.Integer(), nullable=False),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("closed", sa.Boolean(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("summary", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["monitor_id"], ["monitors.id"], name="fk_monitor_streams_monitor_id_monitors", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_monitor_streams"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_monitor_streams_monitor_id", "monitor_streams", ["monitor_id"], unique=False)
    op.create_table(
        "monitor_pieces",
        sa.Column("stream_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"],
            ["monitor_streams.id"],
            name="fk_monitor_pieces_stream_id_monitor_streams",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("stream_id", "place", name="pk_monitor_pieces"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "monitor_hits",
        sa.Column("stream_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("offset", sa.Integer(), nullable=False),
        sa.Column("token_id", sa.Integer(), nullable=False),
        sa.Column("watched", sa.JSON(), nullable=False),
        sa.Column("context", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"], ["monitor_streams.id"], name="fk_monitor_hits_stream_id_monitor_streams", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("stream_id", "token", name="pk_monitor_hits"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "monitor_blocks",
        sa.Column("stream_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("block", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("on_counts", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"],
            ["monitor_streams.id"],
            name="fk_monitor_blocks_stream_id_monitor_streams",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("stream_id", "block", name="pk_monitor_blocks"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("monitor_blocks")
    op.drop_table("monitor_hits")
    op.drop_table("monitor_pieces")
    op.drop_index("ix_monitor_streams_monitor_id", table_name="monitor_streams")
    op.drop_table("monitor_streams")
    op.drop_table("monitors")
