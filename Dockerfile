# The loradock image: system -> wheels -> venv -> runtime; flash-attn and DeepSpeed beside them, built only when asked for.
#
#   loradock build                     checks the machine first, keeps wheels on scratch storage, writes a record
#   docker build -t loradock .         the same image with BuildKit alone
#
# Secrets (none ends in a layer): pip = a pip.conf (index, find-links), ca = a bundle of certificates.
# Every pin and its reason: docker/versions.json; what the image holds and why: docs/image.md.

ARG BASE_IMAGE=nvidia/cuda:12.8.1-base-ubuntu24.04@sha256:133c78a0575303be34164d0b90137a042172bdf60696af01a3c424ab402d86e2
ARG DEVEL_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04@sha256:520292dbb4f755fd360766059e62956e9379485d9e073bbd2f6e3c20c270ed66
ARG FLASH_ATTN=off
# standard; or deepspeed, which has DeepSpeed, and a compiler for the operations that it builds at run time.
ARG VARIANT=standard

FROM scratch AS lock-standard
COPY docker/requirements.lock /requirements.lock

FROM scratch AS lock-deepspeed
COPY docker/requirements-deepspeed.lock /requirements.lock

# hadolint ignore=DL3006
FROM lock-${VARIANT} AS lock

# What every process of the image needs from the distribution: docker/system/apt.txt says why, line by line.
# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS system
ENV LANG=C.UTF-8
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN --mount=type=bind,source=docker/system,target=/run/loradock \
    /run/loradock/apt_install /run/loradock/apt.txt \
    && /run/loradock/harden

FROM system AS system-standard

FROM system AS system-deepspeed
RUN --mount=type=bind,source=docker/system,target=/run/loradock \
    /run/loradock/apt_install /run/loradock/apt-deepspeed.txt \
    && /run/loradock/harden

# pip, for the stages below; none of it reaches the image. `loradock build` runs this stage to fill its wheel cache.
FROM system AS wheels
RUN --mount=type=bind,source=docker/system,target=/run/loradock \
    /run/loradock/apt_install /run/loradock/apt-wheels.txt

# flash-attn: off is the default, because torch 2.10 has FlashAttention-2 inside.
FROM wheels AS flash-attn-off
RUN mkdir /wheels

# hadolint ignore=DL3006
FROM ${DEVEL_IMAGE} AS flash-attn-toolchain
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN --mount=type=bind,source=docker/system,target=/run/loradock \
    /run/loradock/apt_install /run/loradock/apt-flash-attn.txt
COPY docker/flash_attn docker/requirements.lock docker/versions.json /opt/loradock/flash-attn/

FROM flash-attn-toolchain AS flash-attn-build
ARG FLASH_ATTN_ARCHS="80;90"
ARG MAX_JOBS=
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,id=loradock-flash-attn,target=/scratch \
    FLASH_ATTN_ARCHS="$FLASH_ATTN_ARCHS" MAX_JOBS="$MAX_JOBS" \
    /opt/loradock/flash-attn/flash_attn /scratch /wheels

# A wheel that exists already, by its sha256, from where the pip secret's find-links points.
FROM wheels AS flash-attn-wheel
ARG FLASH_ATTN_SHA256
RUN --mount=type=bind,source=docker/fetch_flash_attn,target=/run/loradock/fetch_flash_attn \
    --mount=type=bind,source=docker/versions.json,target=/run/loradock/versions.json \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    /run/loradock/fetch_flash_attn "$FLASH_ATTN_SHA256" /wheels

# hadolint ignore=DL3006
FROM flash-attn-${FLASH_ATTN} AS flash-attn

# DeepSpeed has no wheel of its own: one of its Python is made from the hashed source release, nothing is compiled.
FROM wheels AS built-standard
RUN mkdir /wheels

FROM wheels AS built-deepspeed
RUN --mount=type=bind,source=docker/venv,target=/run/loradock \
    --mount=type=bind,source=docker/requirements-deepspeed.lock,target=/run/requirements.lock \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    /run/loradock/build_deepspeed /run/requirements.lock /wheels

# hadolint ignore=DL3006
FROM built-${VARIANT} AS built

# The packages: one layer, from the lock (a step mounts just the files that decide it, so nothing else rebuilds it),
# trimmed and byte-compiled before it is closed; then proven without a GPU.
# hadolint ignore=DL3006
FROM system-${VARIANT} AS venv
RUN --mount=type=bind,source=docker/venv,target=/run/loradock \
    --mount=type=bind,from=lock,source=/requirements.lock,target=/run/requirements.lock \
    --mount=type=bind,from=wheels,source=/usr/lib/python3/dist-packages/pip,target=/run/pip/pip \
    --mount=type=bind,from=flash-attn,source=/wheels,target=/run/flash-attn \
    --mount=type=bind,from=built,source=/wheels,target=/run/built \
    --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    --mount=type=cache,id=loradock-pip,target=/root/.cache/pip \
    /run/loradock/install_venv /opt/loradock/venv /run/requirements.lock
ENV PATH=/opt/loradock/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONNOUSERSITE=1 \
    PYTHONSAFEPATH=1
RUN --mount=type=bind,source=docker/prove.py,target=/run/loradock/prove.py \
    --mount=type=bind,from=lock,source=/requirements.lock,target=/run/loradock/requirements.lock \
    /opt/loradock/venv/bin/python -B /run/loradock/prove.py /run/loradock/requirements.lock

# loradock itself: a change of code rebuilds from here.
FROM venv AS runtime
COPY --from=lock /requirements.lock /opt/loradock/lock/
COPY docker/versions.json /opt/loradock/lock/
COPY --chmod=0755 entrypoint docker/healthcheck /opt/loradock/bin/
RUN --mount=type=bind,source=.,target=/run/loradock \
    --mount=type=bind,from=wheels,source=/usr/lib/python3/dist-packages/pip,target=/run/pip/pip \
    /run/loradock/docker/install_loradock /run/loradock

ARG VARIANT
ARG VERSION=0+unknown
ARG REVISION=unknown
ARG LOCK_SHA256=unknown
ARG PACKAGES_SHA256=unknown
ARG BASE_NAME=
ARG BASE_VERIFIED=false
ENV LORADOCK_COMMIT=${REVISION} \
    LORADOCK_LOCK=/opt/loradock/lock/requirements.lock \
    DO_NOT_TRACK=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="loradock" \
      org.opencontainers.image.description="Fast, explained QLoRA training" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      loradock.delivery.image="true" \
      loradock.variant="${VARIANT}" \
      loradock.lock="${LOCK_SHA256}" \
      loradock.machine.lockfile="${PACKAGES_SHA256}" \
      loradock.base.verified="${BASE_VERIFIED}"
WORKDIR /workspace
USER 65532:0
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 CMD ["/opt/loradock/bin/healthcheck"]
ENTRYPOINT ["tini", "-g", "--", "/opt/loradock/bin/entrypoint"]
