// Controller runs pipelines, or rather simulates that: it takes runs through their phases,
// writes their logs, and keeps the status of pipelines. It is a controller as authors write them,
// on controller-runtime, and finds its server by a kubeconfig:
//
//	controller --kubeconfig .rowkeeper/kubeconfig
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
)

func main() {
	// Not the flags of the process, to which controller-runtime has added one of the same name and
	// another default.
	flags := flag.NewFlagSet("controller", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", ".rowkeeper/kubeconfig",
		"file that says where the server is, and as whom to use it")
	_ = flags.Parse(os.Args[1:]) // it exits on errors
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler(), *kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot use --kubeconfig: %w", err)
	}
	manager, err := newManager(ctx, config, simulate)
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}

// newManager returns a manager with both controllers. Steps are run by execute.
func newManager(ctx context.Context, config *rest.Config, execute executor) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme,
		// Several managers may be in one process, in tests, and none of them needs a port.
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	if err := (&pipelineReconciler{Client: manager.GetClient(),
		server: manager.GetAPIReader()}).setUp(ctx, manager); err != nil {
		return nil, err
	}
	if err := (&runReconciler{Client: manager.GetClient(),
		execute: execute}).setUp(manager); err != nil {
		return nil, err
	}
	return manager, nil
}
