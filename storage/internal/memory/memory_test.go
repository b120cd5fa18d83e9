package memory

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestGroup: the least limit of the group and those above it counts, in both versions, and in a
// container, where the group's name is one that only the host sees.
func TestGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		groups string
		limits map[string]string
		want   int64
		ok     bool
	}{
		"nothing": {"", nil, math.MaxInt64, false},
		"version 2": {"0::/a/b\n", map[string]string{"a/b/memory.max": "2000\n",
			"a/memory.max": "max\n"}, 2000, true},
		"version 2, above": {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n",
			"a/memory.max": "1000\n"}, 1000, true},
		"version 2, without": {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, math.MaxInt64,
			false},
		"version 2, container": {"0::/kubepods/pod1/c1\n", map[string]string{"memory.max": "3000\n"},
			3000, true},
		"version 1": {"5:cpu:/x\n4:memory:/a\n", map[string]string{
			"memory/a/memory.limit_in_bytes": "4000\n",
			"memory/memory.limit_in_bytes":   "9223372036854771712\n"}, 4000, true},
		"nonsense": {"no group\n0::/a\n", map[string]string{"a/memory.max": "much\n"},
			math.MaxInt64, false},
	} {
		t.Run(name, func(t *testing.T) {
			system := t.TempDir()
			write := func(file, content string) {
				file = filepath.Join(system, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/self/cgroup", tc.groups)
			for file, limit := range tc.limits {
				write("sys/fs/cgroup/"+file, limit)
			}
			if limit, ok := groupIn(system); limit != tc.want || ok != tc.ok {
				t.Errorf("%d, %t, want %d, %t", limit, ok, tc.want, tc.ok)
			}
		})
	}
}
