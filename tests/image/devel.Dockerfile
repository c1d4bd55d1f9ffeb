# A stand-in for the CUDA development image, where no registry can be reached: nvcc 12.4 of Debian trixie (non-free).
#   docker build -t stand-in:devel --build-arg BASE=loradock-stand-in:trixie -f tests/image/devel.Dockerfile tests/image
ARG BASE
# hadolint ignore=DL3006
FROM ${BASE}
# hadolint ignore=DL3008
RUN sed -i 's/ main$/ main contrib non-free/' /etc/apt/sources.list \
    && apt-get update \
    && apt-get install -y --no-install-recommends g++ g++-13 gcc-13 nvidia-cuda-dev nvidia-cuda-toolkit \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb \
    && mkdir -p /usr/local/cuda/bin /usr/local/cuda/include \
    && ln -s /usr/bin/nvcc /usr/local/cuda/bin/nvcc \
    && ln -s /usr/lib/x86_64-linux-gnu /usr/local/cuda/lib64
ENV CUDA_HOME=/usr/local/cuda CC=gcc-13 CXX=g++-13
