"""tables of the search over names"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "name_components",
        sa.Column("index_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("component", sa.String(length=40), nullable=False),
        sa.Column("unit", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("a", sa.String(length=100), nullable=True),
        sa.Column("b", sa.String(length=100), nullable=True),
        sa.Column("promotes", sa.String(length=100), nullable=True),
        sa.Column("a_shown", sa.Text(), nullable=True),
        sa.Column("b_shown", sa.Text(), nullable=True),
        sa.Column("promotes_shown", sa.Text(), nullable=False),
        sa.Column("cls", sa.String(length=12), nullable=True),
        sa.Column("on_share", sa.Double(), nullable=True),
        sa.Column("agreement", sa.Double(), nullable=True),
        sa.Column("half_life", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("index_id", "place", name="pk_name_components"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_name_components_a", "name_components", ["a", "index_id", "place"], unique=False)
    op.create_index("ix_name_components_b", "name_components", ["b", "index_id", "place"], unique=False)
    op.create_index("ix_name_components_component", "name_components", ["component", "index_id", "place"], unique=False)
    op.create_index(
        "ix_name_components_kind", "name_components", ["kind", "half_life", "index_id", "place"], unique=False
    )
    op.create_index("ix_name_components_promotes", "name_components", ["promotes", "index_id", "place"], unique=False)
    op.create_table(
        "name_entries",
        sa.Column("index_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("side", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("token_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("index_id", "side", "token_id", "rank", "place", name="pk_name_entries"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "name_operands",
        sa.Column("index_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("operand", sa.String(length=40), nullable=False),
        sa.Column("page", sa.String(length=40), nullable=False),
        sa.Column("label", sa.String(length=100), nullable=True),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("cls", sa.String(length=12), nullable=False),
        sa.Column("on_share", sa.Double(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("index_id", "place", name="pk_name_operands"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_name_operands_label", "name_operands", ["label", "score", "index_id", "place"], unique=False)
    op.create_index("ix_name_operands_operand", "name_operands", ["operand", "index_id", "place"], unique=False)
    op.create_table(
        "name_tokens",
        sa.Column("index_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("token_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fold", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("display", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("index_id", "token_id", name="pk_name_tokens"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_name_tokens_fold", "name_tokens", ["fold", "index_id"], unique=False)
    op.create_table(
        "names_indexes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("checkpoint_hash", sa.String(length=64), nullable=False),
        sa.Column("names_hash", sa.String(length=64), nullable=False),
        sa.Column("stamp", sa.String(length=120), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_names_indexes"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_names_indexes_checkpoint_hash", "names_indexes", ["checkpoint_hash"], unique=False)
    op.create_index(
        "uq_names_indexes_ready",
        "names_indexes",
        ["checkpoint_hash"],
        unique=True,
        sqlite_where=sa.text("state = 'ready'"),
        postgresql_where=sa.text("state = 'ready'"),
    )


def downgrade() -> None:
    op.drop_index(
        "uq_names_indexes_ready",
        table_name="names_indexes",
        sqlite_where=sa.text("state = 'ready'"),
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.drop_index("ix_names_indexes_checkpoint_hash", table_name="names_indexes")
    op.drop_table("names_indexes")
    op.drop_index("ix_name_tokens_fold", table_name="name_tokens")
    op.drop_table("name_tokens")
    op.drop_index("ix_name_operands_operand", table_name="name_operands")
    op.drop_index("ix_name_operands_label", table_name="name_operands")
    op.drop_table("name_operands")
    op.drop_table("name_entries")
    op.drop_index("ix_name_components_promotes", table_name="name_components")
    op.drop_index("ix_name_components_kind", table_name="name_components")
    op.drop_index("ix_name_components_component", table_name="name_components")
    op.drop_index("ix_name_components_b", table_name="name_components")
    op.drop_index("ix_name_components_a", table_name="name_components")
    op.drop_table("name_components")
