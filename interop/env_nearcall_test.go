package interop

// nearcallEnvironments are the paths under test.
var nearcallEnvironments []Env
