package load

// LoadPrefix and Loaded are for tests of the whole program.
const LoadPrefix = keyPrefix

type Loaded = report
