package main

import (
	"fmt"
	"time"

	"github.com/sluice-go/sluice/router"
)

// judge is what running processes would refuse, or take in a way that nobody means.
func judge(before, after router.Topology) (f findings) {
	same := before.Digest() == after.Digest()
	switch {
	case after.Epoch == before.Epoch && same:
		f.add(info, "epoch", "both are the same topology", "")
		return f
	case after.Epoch == before.Epoch:
		f.add(critical, "epoch", fmt.Sprintf("refused: both have epoch %d, and differ: processes that meet stop deciding", after.Epoch),
			fmt.Sprintf("Give the new one an epoch above %d.", before.Epoch))
	case after.Epoch < before.Epoch:
		f.add(critical, "epoch", fmt.Sprintf("refused: epoch %d is below %d, which is in force", after.Epoch, before.Epoch),
			fmt.Sprintf("A change is taken back by another: give it an epoch above %d.", before.Epoch))
	}
	if before.Epoch == 0 {
		f.add(warning, "epoch", "the old topology has epoch 0: processes that use it ask nobody for a newer one",
			"Restart them all with the new one at once, or first with the old one under epoch 1.")
	}
	f = append(f, judgePrevious(before, after)...)
	if before.Seed != after.Seed {
		f.add(warning, "seed", fmt.Sprintf("the seed changes from %d to %d, which moves nearly every key", before.Seed, after.Seed),
			"Keep the seed, unless that is what you want.")
	}
	return append(f, judgeGroups(before, after)...)
}

func judgePrevious(before, after router.Topology) (f findings) {
	switch p := after.Previous; {
	case after.Epoch <= before.Epoch:
	case p == nil:
		f.add(warning, "previous", "the new topology doesn't name its previous one: "+
			"a process that starts during the hand-over doesn't know "+
			"where a key has its counts, unless a server tells it",
			`Put the old topology into it as "previous", until the hand-over is over. (throttlectl topology push adds it to what it posts.)`)
	case p.Epoch != before.Epoch || p.Digest() != before.Digest():
		f.add(warning, "previous", fmt.Sprintf("the previous one that the new topology names is not the old one: epoch %d, "+
			"not %d", p.Epoch, before.Epoch),
			`Put the old topology into it as "previous", unchanged.`)
	case before.Previous != nil && p.Previous == nil:
		f.add(info, "previous", "the old topology names a previous one, which the new one no longer does",
			"Keep it there if the hand-over from it isn't over yet.")
	}
	return f
}

// judgeGroups looks at groups that keep their name.
func judgeGroups(before, after router.Topology) (f findings) {
	then := make(map[string]router.Group)
	for _, g := range before.Groups {
		then[g.Name] = g
	}
	for _, g := range after.Groups {
		old, ok := then[g.Name]
		if !ok {
			continue
		}
		if was, is := kindOf(old), kindOf(g); was != is {
			f = append(f, finding{Severity: warning, Check: "address", Group: g.Name,
				What: fmt.Sprintf("changes from %s to %s, and its keys don't change their owner: no counts are carried over", was, is),
				Do: "If that is another server, attach it as a replica and promote it first, or give the group a new name: " +
					"then its keys are handed over."})
		}
	}
	return f
}

// kindOf is where the counts of a group are.
func kindOf(g router.Group) string {
	switch {
	case len(g.Sentinels) > 0:
		return "master " + g.Master + " of sentinels"
	case len(g.Cluster) > 0:
		return "a Redis Cluster"
	}
	return "primary " + g.Primary
}

func (o *reshardOptions) judgeTimes(p *reshardPlan) (f findings) {
	if p.Moved == 0 {
		return nil
	}
	if p.Window == 0 {
		f.add(info, "window", "the longest window of a policy isn't known: "+
			"the hand-over lasts that much longer than --settle", "Give every --limit.")
		return f
	}
	if time.Duration(p.HandOver) > o.drain {
		f.add(critical, "drain", fmt.Sprintf("the hand-over takes %v, but processes let go of old groups after %v", p.HandOver, o.drain),
			fmt.Sprintf("Set router.Config.Drain to at least %v in all applications, and restart them, before the change.", p.HandOver))
	}
	return f
}
