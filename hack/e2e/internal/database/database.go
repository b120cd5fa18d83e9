// Package database runs a database server for a test, by the program dbserve of the main module.
package database

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Database is a database server.
type Database struct {
	// URL is that of an empty database, with the password. Version and Source say what the server
	// is and where it came from.
	URL, Version, Source string

	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// Start starts a server of a kind.
func Start(bin, kind string) (*Database, error) {
	d := &Database{cmd: exec.Command(filepath.Join(bin, "dbserve"), kind)}
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = json.NewDecoder(bufio.NewReader(out))
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	if err := d.out.Decode(d); err != nil {
		// Why it has ended it has said on standard error.
		return nil, fmt.Errorf("dbserve could not start a database server of kind %s: %w", kind,
			errors.Join(d.Close(), err))
	}
	return d, nil
}

// Do executes a command of dbserve: start, stop, kill, pause, resume, or exec and a statement.
func (d *Database) Do(command string) error {
	if _, err := io.WriteString(d.in, command+"\n"); err != nil {
		return err
	}
	var answer struct{ Error string }
	if err := d.out.Decode(&answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return fmt.Errorf("the database server cannot %s: %s", command, answer.Error)
	}
	return nil
}

// Close removes the server.
func (d *Database) Close() error {
	return errors.Join(d.in.Close(), d.cmd.Wait())
}
