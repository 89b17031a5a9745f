"""Methods that call functions of higher layers: each imports its module when it is called, as no other file may."""
