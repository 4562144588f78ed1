package router

// PreviousTopologies returns how many previous topologies keys may have counts under.
func (r *Router) PreviousTopologies() int { return len(r.table.Load().history.all) }
