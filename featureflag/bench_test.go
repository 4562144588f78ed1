package featureflag_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-go/sluice/featureflag"
)

var sink bool

func TestAnswersDoNotAllocate(t *testing.T) {
	f := open(t, featureflag.Config{Name: "use-redis", Source: featureflag.Static(50)})
	for name, ask := range map[string]func(){
		"Enabled": func() { sink = f.Enabled("user:1") },
		"Decide":  func() { sink, _ = f.Decide("user:1") },
		"State":   func() { s := f.State(); sink = s.Enabled("user:1") },
	} {
		if n := testing.AllocsPerRun(100, ask); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestACallbackThatHangsHoldsUpNobody(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	called := make(chan struct{})
	f := open(t, featureflag.Config{
		Name: "use-redis", Source: &fake{value: value(50, 1)}, Refresh: time.Millisecond,
		OnChange: func(featureflag.State) { close(called); <-release },
	})
	<-called // the flag's goroutine hangs in a callback from now on
	for range 1000 {
		sink = f.Enabled("user:1")
		f.Override(featureflag.Clear)
	}
}

func BenchmarkEnabled(b *testing.B) {
	keys := make([]string, 1<<14)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", 1000000+i*7919)
	}
	f := open(b, featureflag.Config{Name: "use-redis", Source: featureflag.Static(50)})
	b.Run("serial", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			sink = f.Enabled(keys[i%len(keys)])
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			on := false
			for i := 0; pb.Next(); i++ {
				on = f.Enabled(keys[i%len(keys)]) != on
			}
			runtime.KeepAlive(on)
		})
	})
}
