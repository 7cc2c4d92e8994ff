# IIS in front, on hosts with Windows; MySQL behind, on a host with Linux. Version 1 has another web image, and says so.
version: '2'
services:
  web:
    image: ${web_image}
    isolation: ${isolation}
    {{- if ne .Values.public_port "" }}
    ports:
    - ${public_port}:80/tcp
    {{- end }}
    links:
    - db
    environment:
      DB_HOST: db
      DB_NAME: ${database}
      DEMO_VERSION: v2
    labels:
      io.rancher.scheduler.affinity:host_label: ${web_host}
      {{- if eq .Values.spread "true" }}
      io.rancher.scheduler.affinity:container_label_soft_ne: io.rancher.stack_service.name=$${stack_name}/$${service_name}
      {{- end }}
  db:
    image: ${db_image}
    environment:
      MYSQL_DATABASE: ${database}
      MYSQL_ROOT_PASSWORD: ${root_password}
    volumes_from:
    - db-data
    labels:
      io.rancher.scheduler.affinity:host_label: ${db_host}
      io.rancher.sidekicks: db-data
  # The volume stays with its host when the containers are replaced.
  db-data:
    image: ${data_image}
    command: ['/bin/true']
    network_mode: none
    volumes:
    - windows-demo-db:/var/lib/mysql
    labels:
      io.rancher.container.start_once: true
