"""names, notes and votes of people, and collections of readings and components"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "authors",
        sa.Column("skeleton", sa.String(length=200), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("skeleton", name="pk_authors"),
    )
    op.create_table(
        "notes",
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("component", sa.String(length=40), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("checkpoint_hash", "component", name="pk_notes"),
    )
    op.create_index("ix_notes_layer", "notes", ["checkpoint_hash", "layer"], unique=False)
    op.create_table(
        "note_revisions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("component", sa.String(length=40), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_note_revisions"),
        sa.UniqueConstraint(
            "checkpoint_hash", "component", "revision", name="uq_note_revisions_checkpoint_hash_component_revision"
        ),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_note_revisions_checkpoint_hash_id", "note_revisions", ["checkpoint_hash", "id"], unique=False)
    op.create_table(
        "note_words",
        sa.Column("word", sa.String(length=64), nullable=False),
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("component", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("word", "checkpoint_hash", "component", name="pk_note_words"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_note_words_component", "note_words", ["checkpoint_hash", "component"], unique=False)
    op.create_table(
        "votes",
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("component", sa.String(length=40), nullable=False),
        sa.Column("label", sa.String(length=200), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("vote", sa.String(length=8), nullable=False),
        sa.Column("voted_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("checkpoint_hash", "component", "label", "author", name="pk_votes"),
    )
    op.create_table(
        "collections",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("author", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_collections"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_collections_updated_at", "collections", ["updated_at"], unique=False)
    op.create_table(
        "collection_items",
        sa.Column("collection_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("position", sa.Integer(), nullable=True),
        sa.Column("target", sa.Integer(), nullable=True),
        sa.Column("contrast", sa.Integer(), nullable=True),
        sa.Column("relative_to", sa.String(length=16), nullable=True),
        sa.Column("component", sa.String(length=40), nullable=True),
        sa.ForeignKeyConstraint(
            ["collection_id"],
            ["collections.id"],
            name="fk_collection_items_collection_id_collections",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("collection_id", "place", name="pk_collection_items"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("collection_items")
    op.drop_index("ix_collections_updated_at", table_name="collections")
    op.drop_table("collections")
    op.drop_table("votes")
    op.drop_index("ix_note_words_component", table_name="note_words")
    op.drop_table("note_words")
    op.drop_index("ix_note_revisions_checkpoint_hash_id", table_name="note_revisions")
    op.drop_table("note_revisions")
    op.drop_index("ix_notes_layer", table_name="notes")
    op.drop_table("notes")
    op.drop_table("authors")
