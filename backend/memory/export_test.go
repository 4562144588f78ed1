package memory

// Len returns how many keys are remembered, those included whose windows are over and that were not swept yet.
func (m *Memory) Len() int {
	n := 0
	for i := range m.shards {
		m.shards[i].mu.Lock()
		n += m.shards[i].cells.Len
		m.shards[i].mu.Unlock()
	}
	return n
}
