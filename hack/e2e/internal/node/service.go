package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Follow stands in for the part of kube-proxy that knows a Service's backends: it calls set with
// the addresses of the pods that the Service selects and that are ready and not about to end,
// whenever that changes, until ctx ends.
func Follow(ctx context.Context, client kubernetes.Interface, service *corev1.Service,
	set func(addresses ...string)) error {
	if len(service.Spec.Selector) == 0 || len(service.Spec.Ports) != 1 {
		return fmt.Errorf("service %s/%s must have a selector and one port", service.Namespace,
			service.Name)
	}
	target := service.Spec.Ports[0].TargetPort
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(service.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = labels.SelectorFromSet(service.Spec.Selector).String()
		}))
	pods := factory.Core().V1().Pods()
	sync := func() {
		list, err := pods.Lister().List(labels.Everything())
		if err != nil {
			return
		}
		var addresses []string
		for _, pod := range list {
			port, err := containerPort(pod.Spec.Containers[0], target)
			if err != nil || pod.DeletionTimestamp != nil || !ready(pod) {
				continue
			}
			addresses = append(addresses,
				net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port))))
		}
		slices.Sort(addresses)
		set(addresses...)
	}
	_, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) {
			sync()
		}, UpdateFunc: func(_, _ any) { sync() }, DeleteFunc: func(any) { sync() },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	return nil
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
