# One image for the web and for workers; docker-compose.yml runs both.
FROM python:3.11-slim AS build
WORKDIR /src
RUN pip install --no-cache-dir hatchling
COPY pyproject.toml hatch_build.py alembic.ini LICENSE README.md ./
COPY legible_core legible_core
COPY app app
COPY migrations migrations
COPY models models
COPY static static
COPY templates templates
RUN python -m hatchling build -t wheel -d /wheels

FROM python:3.11-slim
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheels /tmp/wheels
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(echo /tmp/wheels/*.whl)[postgres,ordinary]" \
    && rm -r /tmp/wheels \
    && useradd --create-home --uid 1000 legible \
    && install -d -o legible -g legible /data
USER legible
# A model added by its hub name lies in the volume as well: web and workers look at the same files.
ENV LEGIBLE_DATA_DIR=/data HF_HOME=/data/huggingface PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8321
# Listening beyond the container's loopback, so it asks for LEGIBLE_TOKEN, or makes one and prints it.
ENV LEGIBLE_HOST=0.0.0.0
CMD ["legible", "serve"]
