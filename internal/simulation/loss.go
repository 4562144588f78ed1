package simulation

// loss is what a server forgot of a key at a failover or a flush, and the measure of promise P4.
//
// Charges of a key at a server have serial numbers. At the loss those above the copy's are forgotten. Each instance knows the
// key up to some charge: the newest reply that it has heard. A take that it sends afterwards carries that as its floor.
//
// States join by the larger count, so when a floor comes that knows charges up to k, the server counts the larger of the
// floor and of what was charged since the loss, and not the sum. So at any moment it is short by at most
//
//	forgotten(above k) + since(k)
//
// where k is the newest that any floor has brought so far, and since(k) is what was charged between the loss and that
// floor. Of the forgotten charges above the newest floor of all no reply had arrived: they were under way or lost. So
// the admissions above Max are at most
//
//	what was under way at the loss + what was charged from the loss until the holder of the newest floor called again
//
// which is the bound that is checked. If that holder has ended, or has nothing to say, it is all that is charged since.
// This holds for one loss of each key: where there may be more, as where keys move, only Max for each loss is checked. A
// window that has been opened anew since, with a later end, counts what a floor of the earlier one used as long as that is
// alive. Here each by itself is checked; that both together keep the bound is for the tests of package limit.
type loss struct {
	server     *node
	key        string
	life       int    // of the server, which ended
	forgotten  []debt // in order
	newest     int64  // that anyone had heard of
	heard      int64  // k
	since      int64  // charged so far
	sinceHeard int64  // since(k)
	over       bool   // the newest floor has come
}

// lost is that a server goes on with the copy of a key that knows its charges up to a serial number.
func (b *book) lost(n *node, key string, kept int64) {
	l := &loss{server: n, key: key, life: n.life, heard: kept, newest: b.acknowledged[place{n, key}]}
	for _, d := range n.charges[key] {
		if d.serial > kept {
			l.forgotten = append(l.forgotten, d)
		}
	}
	if len(l.forgotten) == 0 {
		return
	}
	l.over = l.newest <= kept
	b.w.report.Lost += len(l.forgotten)
	b.w.note("%s: forgets %d charges of %s", n.group, len(l.forgotten), key)
	b.losses = append(b.losses, l)
}

// place is a key at a server.
type place struct {
	server *node
	key    string
}

// covered is that a take has brought a floor, which knows a key up to a charge of each life of the server. What it has
// heard of later lives says nothing of what was forgotten before.
func (b *book) covered(n *node, key string, knew []int64) {
	for _, l := range b.losses {
		if l.server == n && l.key == key && len(knew) > l.life && knew[l.life] > l.heard {
			l.heard, l.sinceHeard = knew[l.life], l.since
			l.over = l.over || l.heard >= l.newest
		}
	}
}

// post counts a charge since a loss. It reports whether the holder of the newest floor has not called yet.
func (b *book) post(n *node, key string, cost int64) (unsure bool) {
	for _, l := range b.losses {
		if l.server == n && l.key == key {
			l.since += cost
			unsure = unsure || !l.over
		}
	}
	return unsure
}

// forgot is how much a server may be short of a key.
func (b *book) forgot(n *node, key string) (most int64) {
	for _, l := range b.losses {
		if l.server == n && l.key == key {
			most += l.sinceHeard + l.above(l.heard)
		}
	}
	return most
}

// unheard is what was charged before a loss and not acknowledged.
func (b *book) unheard(key string) (sum int64) {
	for _, l := range b.losses {
		if l.key == key {
			sum += l.above(l.newest)
		}
	}
	return sum
}

func (l *loss) above(serial int64) (sum int64) {
	for _, d := range l.forgotten {
		if d.serial > serial {
			sum += d.cost
		}
	}
	return sum
}
