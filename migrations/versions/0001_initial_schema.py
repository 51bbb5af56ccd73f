"""initial schema"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("slug", name="pk_checkpoints"),
    )
    op.create_index("ix_checkpoints_hash", "checkpoints", ["hash"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=32), nullable=True),
        sa.Column("done", sa.Double(), nullable=True),
        sa.Column("total", sa.Double(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("worker", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_key", "jobs", ["key"], unique=False)
    op.create_index("ix_jobs_queue", "jobs", ["state", "priority", "id"], unique=False)
    op.create_index("ix_jobs_subject", "jobs", ["subject"], unique=False)
    op.create_index(
        "uq_jobs_active_key",
        "jobs",
        ["key"],
        unique=True,
        sqlite_where=sa.text("state IN ('waiting', 'running')"),
        postgresql_where=sa.text("state IN ('waiting', 'running')"),
    )

    op.create_table(
        "prompts",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("text", sa.LargeBinary(), nullable=False),
        sa.Column("edits", sa.JSON(), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("schema", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_prompts"),
    )
    op.create_index("ix_prompts_checkpoint_hash", "prompts", ["checkpoint_hash"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=True),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "job_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("event", sa.String(length=16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=64), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_events_job_id_jobs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_events_job_id", "job_events", ["job_id"], unique=False)

    op.create_table(
        "readings",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("contrast", sa.Integer(), nullable=False),
        sa.Column("relative_to", sa.String(length=16), nullable=False),
        sa.Column("predicted", sa.Integer(), nullable=False),
        sa.Column("target_display", sa.Text(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("collected_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["prompts.digest"], name="fk_readings_digest_prompts", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_readings"),
        sa.UniqueConstraint(
            "digest",
            "position",
            "target",
            "contrast",
            "relative_to",
            name="uq_readings_digest_position_target_contrast_relative_to",
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_readings_created_at", "readings", ["created_at"], unique=False)

    op.create_table(
        "revisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("reading_id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("code_version", sa.String(length=40), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["reading_id"], ["readings.id"], name="fk_revisions_reading_id_readings", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_revisions"),
        sa.UniqueConstraint("reading_id", "revision", name="uq_revisions_reading_id_revision"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("revisions")
    op.drop_index("ix_readings_created_at", "readings")

    op.drop_table("readings")
    op.drop_index("ix_job_events_job_id", "job_events")

    op.drop_table("job_events")
    op.drop_table("workers")
    op.drop_index("ix_prompts_checkpoint_hash", "prompts")

    op.drop_table("prompts")
    op.drop_index("uq_jobs_active_key", "jobs")
    op.drop_index("ix_jobs_subject", "jobs")
    op.drop_index("ix_jobs_queue", "jobs")
    op.drop_index("ix_jobs_key", "jobs")

    op.drop_table("jobs")
    op.drop_index("ix_checkpoints_hash", "checkpoints")

    op.drop_table("checkpoints")
