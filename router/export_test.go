package router

// Formers returns how many former topologies keys may come from.
func (r *Router) Formers() int { return len(r.table.Load().history.all) }
