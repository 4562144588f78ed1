//go:build linux && amd64

package testserver

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A HostClock is how far the wall clocks of Go processes that follow it are off. Their monotonic clocks go on as they did.
type HostClock struct {
	file string
	off  time.Duration
}

// NewHostClock returns a clock that is right until it is stepped.
func NewHostClock(t testing.TB) *HostClock {
	t.Helper()
	c := &HostClock{file: filepath.Join(t.TempDir(), "offset")}
	c.Step(t, 0)
	return c
}

// File is what [FollowHostClock] takes.
func (c *HostClock) File() string { return c.file }

// Step puts the clock forward, or back, by whole seconds.
func (c *HostClock) Step(t testing.TB, by time.Duration) {
	t.Helper()
	c.off += by
	f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = f.Write(binary.LittleEndian.AppendUint64(nil, uint64(c.off/time.Second))) // in place, at once
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
}

// FollowHostClock makes the wall clock of this process follow a HostClock for good. Call it first in the process. A preloaded
// shim, as of [Clock], doesn't reach a Go program: it reads the clock by the kernel's vDSO. So this overwrites the vDSO's
// clock_gettime in the memory of this process, with a system call that adds the seconds in the file.
func FollowHostClock(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	seconds, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	at, err := clockGettime(memory)
	if err != nil {
		return err
	}
	code := slices.Concat(
		[]byte{0xb8, 0xe4, 0, 0, 0}, // mov eax, SYS_clock_gettime
		[]byte{0x0f, 0x05},          // syscall
		[]byte{0x85, 0xff},          // test edi, edi: CLOCK_REALTIME?
		[]byte{0x75, 0x10},          // jnz to the ret
		binary.LittleEndian.AppendUint64([]byte{0x48, 0xba}, uint64(uintptr(unsafe.Pointer(&seconds[0])))), // mov rdx, seconds
		[]byte{0x48, 0x8b, 0x12}, // mov rdx, [rdx]
		[]byte{0x48, 0x01, 0x16}, // add [rsi], rdx
		[]byte{0xc3},             // ret
	)
	_, err = memory.WriteAt(code, at)
	return err
}

// clockGettime returns the address of the vDSO's clock_gettime.
func clockGettime(memory *os.File) (int64, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		var low, high int64
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &low, &high); err != nil {
			return 0, err
		}
		image := make([]byte, high-low)
		if _, err := memory.ReadAt(image, low); err != nil {
			return 0, err
		}
		vdso, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			return 0, err
		}
		symbols, err := vdso.DynamicSymbols()
		if err != nil {
			return 0, err
		}
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				return low + int64(s.Value), nil
			}
		}
	}
	return 0, errors.New("this process has no vDSO with clock_gettime")
}
