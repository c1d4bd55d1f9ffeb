"""Cards and driver, as NVML and the driver's library describe them."""
