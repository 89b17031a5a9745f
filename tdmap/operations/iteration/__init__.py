"""Results one after the other, as they are asked for: `map_iter`, its iterator, copies ahead to a device."""
