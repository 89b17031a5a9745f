"""Those who run jobs: one file each, all of them a crew for the driver."""
