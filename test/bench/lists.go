package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// bytesOnly leaves messages as they are: taking them apart is each client's own cost.
type bytesOnly struct{}

func (bytesOnly) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (bytesOnly) Unmarshal(b []byte, v any) error { *v.(*[]byte) = b; return nil }
func (bytesOnly) Name() string                    { return "proto" }

func call(conn *grpc.ClientConn, method string) float64 {
	var request, response []byte
	t := time.Now()
	check(conn.Invoke(ctx(), "/runtime.v1.RuntimeService/"+method, &request, &response, grpc.ForceCodec(bytesOnly{})))
	return ms(time.Since(t))
}

const callsARound = 100

// listTimes returns how long ListContainers takes, the median of each round.
func listTimes(conn *grpc.ClientConn) (times []float64) {
	for range *rounds {
		var round []float64
		for range callsARound {
			round = append(round, call(conn, "ListContainers"))
		}
		times = append(times, median(round))
	}
	return
}

// Longer than the daemon keeps what it has read: each call reads all cgroups anew.
const keptMs = 1100

const readsARound = 3

// statsTimes compares ListContainerStats with reading the files of one container's cgroup, count times;
// kept is what a call takes that comes while the daemon has what it read for the one before.
func statsTimes(conn *grpc.ClientConn, container string, count int) (f figure, kept []float64) {
	files := cgroupFiles(container)
	call(conn, "ListContainerStats") // the first one counts the writable layers
	for range *rounds {
		var ours, theirs []float64
		for range readsARound {
			time.Sleep(keptMs * time.Millisecond)
			ours = append(ours, call(conn, "ListContainerStats"))
			kept = append(kept, call(conn, "ListContainerStats"))
			t := time.Now()
			for range count { // in a row, to be as likely to be interrupted
				for _, file := range files {
					must(os.ReadFile(file))
				}
			}
			theirs = append(theirs, ms(time.Since(t)))
		}
		f.add(median(ours), median(theirs))
	}
	return
}

// What CRI's stats are made of, on cgroup v1 and v2.
var statFiles = strings.Fields(`cpuacct.usage memory.usage_in_bytes cpu.stat memory.current memory.stat
	memory.max memory.swap.current memory.swap.max cpu.pressure memory.pressure io.pressure`)

func cgroupFiles(container string) (files []string) {
	unified := true
	check(filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(filepath.Dir(path), container) || entry.IsDir() {
			return nil // cgroups of others come and go
		}
		unified = unified && !strings.HasSuffix(path, "cpuacct.usage")
		if slices.Contains(statFiles, entry.Name()) {
			files = append(files, path)
		}
		return nil
	}))
	if !unified { // there cpu.stat tells of limits alone
		files = slices.DeleteFunc(files, func(file string) bool { return strings.HasSuffix(file, "/cpu.stat") })
	}
	return
}
