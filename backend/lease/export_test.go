package lease

// CloseShards closes the shards, as Close does before it charges what is owed.
func (l *Lease) CloseShards() {
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
	}
}
